-- What questions about whole documents need of their tokens, one row a document: to find it among all tokens takes longer than to
-- read all else. Made of the token tables alone (results/ingest/documents.py), by every ingest; like them without an index.

-- Lists have one entry per token, in order; NULL where the positions of a document are not 1..n. is_known: whether the trace says
-- what full depth emitted; first_divergence: the first position of another token, divergence_score: the gate's score there.
CREATE TABLE document_exit (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, is_known BOOLEAN NOT NULL, first_divergence INTEGER,
    divergence_score FLOAT, exit_layer SMALLINT[], is_equal BOOLEAN[]
);

-- Of full depth's answers, not of given texts: one entry per token, in order; NULL where their positions are not 1..n.
CREATE TABLE document_probe (attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, first_match SMALLINT[]);

INSERT INTO document_exit BY NAME
SELECT
    attempt_id, doc_key, count(full_token_id) > 0 AS is_known,
    min(position) FILTER (token_id IS DISTINCT FROM full_token_id) AS first_divergence,
    arg_min_null(score, position) FILTER (token_id IS DISTINCT FROM full_token_id) AS divergence_score,
    CASE WHEN min(position) = 1 AND max(position) = count(*) THEN list(exit_layer ORDER BY position) END AS exit_layer,
    CASE WHEN min(position) = 1 AND max(position) = count(*) THEN
        list(coalesce(token_id = full_token_id, false) ORDER BY position) END AS is_equal
FROM token_exit GROUP BY attempt_id, doc_key;

INSERT INTO document_probe BY NAME
SELECT
    attempt_id, doc_key,
    CASE WHEN min(position) = 1 AND max(position) = count(*) THEN list(first_match ORDER BY position) END AS first_match
FROM probe_token WHERE choice IS NULL GROUP BY attempt_id, doc_key;
