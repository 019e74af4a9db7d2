-- Drafted tokens that verification threw away right before a token; NULL where nothing is verified.

ALTER TABLE token_exit ADD COLUMN rejected INTEGER;
