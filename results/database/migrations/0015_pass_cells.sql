-- How many cells shared the pass that answered this one's documents: its seconds are not its own then. NULL where it was alone.
ALTER TABLE attempt ADD COLUMN pass_cells INTEGER;
