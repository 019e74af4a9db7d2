       coalesce(
           nullif(
               concat_ws(
                   ' · ', if(count(DISTINCT model) OVER () > 1, model, NULL),
                   if(count(DISTINCT confidence) OVER () > 1, confidence, NULL),
                   if(count(DISTINCT kv_policy) OVER () > 1, kv_policy, NULL),
                   if(count(DISTINCT asked) OVER () > 1, asked, NULL)
               ),
               ''
           ),
           model
       ) AS series,
