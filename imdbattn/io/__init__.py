"""Files and the network: atomic writes, locks, folders, and answers of servers."""
