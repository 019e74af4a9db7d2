-- What papers claim is read from the files of reports/claims, not from the database.
DROP VIEW IF EXISTS claims;
DROP TABLE IF EXISTS claim;
