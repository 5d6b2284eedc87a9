"""Trains, evaluates and stores Wide&Deep models whose embedding tables live in host memory (see docs/DESIGN.md)."""
