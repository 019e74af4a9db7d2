-- Published: What do papers claim that runs can test?
-- Our wording, the sign and size that would confirm it, the suite that measures it and how our evidence differs from
-- the paper's. The report has the verdicts; evidence_sql of the view `claims` is what they are computed from.
SELECT paper, place, text, direction, bound, tolerance, unit, published, suite, caveat
FROM claims
ORDER BY paper, claim_id;
