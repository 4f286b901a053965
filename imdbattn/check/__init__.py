"""A checker for attention modules that students write."""
