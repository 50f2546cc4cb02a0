"""Agents that are programs: what they are told, how they run, and the seat that they act for."""
