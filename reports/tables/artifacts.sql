-- The weights and documents behind the cells, each with the digest that is part of its cells' identity.
SELECT 'model' AS artifact, name, kind, blocks, encoder_blocks, parameters, NULL AS documents, NULL AS source,
       weights_sha256 AS sha256
FROM model_artifact
UNION ALL
SELECT 'documents', label, split, NULL, NULL, NULL, documents, source, data_sha256
FROM dataset_artifact
ORDER BY artifact DESC, name, kind, documents, sha256;
