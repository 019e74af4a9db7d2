"""Everything that runs models: engine, decode loop, cells, suites, workers, training; and the command line and API."""
