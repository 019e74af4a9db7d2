-- What tells apart what a method computed: the engine's version, a point, and the method's revision (methods/registry.py); of cells of
-- earlier versions the digest of the method's source.
ALTER TABLE cell RENAME COLUMN method_sha256 TO method_revision;
