-- Of tokens whose gates were decided from bounds of the logits: by how much the stored score may be off (NULL: it is exact), rows of the
-- int8 copy of the LM head multiplied, and how often the whole head was read because bounds left a decision open. NULL where it always is.
ALTER TABLE token_exit ADD COLUMN score_half_width FLOAT;
ALTER TABLE token_exit ADD COLUMN head_rows_int8 INTEGER;
ALTER TABLE token_exit ADD COLUMN head_fallbacks INTEGER;
