"""Tests that need a browser; `make test-browser` runs them."""
