"""What every room shares: errors, options, components, specifications, seeds and files. No torch at import."""
