"""HTTP/1.1 of the data path: clients' connections in front, a pool of workers' ones behind."""
