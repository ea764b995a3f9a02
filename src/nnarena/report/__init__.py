"""What a store says, for people: summary, tables and the page. No torch."""
