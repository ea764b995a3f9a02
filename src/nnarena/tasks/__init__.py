"""Tasks, one file each: data, loss, metrics; what goes in and what must come out."""
