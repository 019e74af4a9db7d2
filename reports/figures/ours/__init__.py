"""What early exit costs and gives: figures of ours, of no paper."""
