-- Encoders: After which blocks do documents exit an encoder, and how accurate are the labels there?
-- One row per run and block at which the gate was evaluated. still_in: number of documents that reached the block;
-- right_of_exited: share of right labels among those that exited there.
SELECT
    model, task_label, method, label, seed, block, blocks, asked AS still_in, exited, share_exited, right_of_asked,
    right_of_exited, mean_error_of_exited, mean_score
FROM sequence_blocks
ORDER BY model, task_label, method, label, seed, cell_id, block;
