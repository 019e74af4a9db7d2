WITH heads AS (
    SELECT *, conditions AS setting, params ->> 'confidence' AS confidence,
           'heads ' || (params ->> 'exit_blocks') AS asked, CAST(params ->> 'epsilon' AS DOUBLE) AS epsilon
    FROM frontier
    WHERE NOT random_weights AND execution = 'real' AND method = 'heads' AND params ->> 'rule' = 'epsilon'
        AND coalesce(CAST(params ->> 'temperature' AS DOUBLE), 0) = 0
),
