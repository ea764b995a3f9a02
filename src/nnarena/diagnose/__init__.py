"""How gradients and activations flow through a competitor, before and after training.

What a recurrent network s_{t+1} = f(s_t, x_{t+1}) learns of step t comes back through every step in between:

    ∂L/∂s_t = J_tᵀ J_{t+1}ᵀ … J_{T−1}ᵀ ∂L/∂s_T,      J_t = ∂s_{t+1}/∂s_t

For h ← σ(W h + V x) each J is diag(σ′) W, and so

    ‖∂L/∂h_t‖ ≤ ‖∂L/∂h_T‖ · ‖W‖^{T−t} · Π_k ‖diag(σ′(W h_k + V x_{k+1}))‖

A factor that is below 1 on average makes the gradient vanish, and nothing is learned over T − t steps; one above 1
makes it explode. A unitary W without squashing keeps its length. Here the left side is measured at every step, beside
the spectral radius and the norm of J on the way, and what activations, weights and their gradients look like in each
layer.
"""
