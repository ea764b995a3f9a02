"""Our speed beside the peers', as ratios in one run on the machine at hand."""
