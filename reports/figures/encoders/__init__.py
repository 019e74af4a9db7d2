"""What leaving early costs and gives where whole sequences leave: classifiers that are encoders."""
