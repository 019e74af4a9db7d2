-- Encoders: After which blocks do documents leave an encoder, and how right are they there?
-- One row a run and block that was asked. still_in: documents of which the block was asked; right_of_exited: of those that left.
SELECT
    model, task_label, method, label, seed, block, blocks, asked AS still_in, exited, share_exited, right_of_asked,
    right_of_exited, mean_error_of_exited, mean_score
FROM sequence_blocks
ORDER BY model, task_label, method, label, seed, cell_id, block;
