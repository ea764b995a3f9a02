"""Where trials run: this process, or a pool of local workers. The same trials, the same store."""
