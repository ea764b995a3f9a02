"""Agents, replay, rollouts."""
