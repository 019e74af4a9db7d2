gates AS (  -- gates in PRUNE's setting: one constant threshold, evaluated at every block
    SELECT f.*, t.loss,
           concat_ws(', ', f.conditions, 'threshold ' || (f.params ->> 'threshold'),
                     nullif(f.kv_policy, 'state-copy')) AS setting,
           f.params ->> 'head' AS head, CAST(f.params ->> 'min_exit' AS INTEGER) AS min_exit
    FROM frontier AS f
    JOIN objectives AS t USING (model)
    WHERE NOT f.random_weights AND f.execution = 'real'
          AND f.params ->> 'rule' = 'constant' AND f.params ->> 'decay' = 'none' AND f.params ->> 'every' = '1'
          AND coalesce(f.params ->> 'emit_score', 'plain') = 'plain'
),
