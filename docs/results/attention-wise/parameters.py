"""Parameters of every model of the study, ours beside the paper's: python parameters.py

The models are built, and nothing is trained; no data are needed.
"""

from nnarena.core.study import STUDIES, find_study
from nnarena.engine.fit import check_fit
from nnarena.report.published import figures_of, read_figures

study = find_study("attention-wise")
figures = read_figures(STUDIES / study.published)

print("| task | model | optimizer | ours | the paper's | difference |\n|---|---|---|---:|---:|---:|")
for trial in study.cells():
    ours = check_fit(trial)
    printed = [int(figure.mean) for figure in figures_of(figures, *trial.cell) if figure.metric == "parameters"]
    theirs = f"{printed[0]:,} | {ours - printed[0]:+,}" if printed else " | "
    print(f"| {' | '.join(trial.cell)} | {ours:,} | {theirs} |")
