"""Everything of the engine that touches Ray."""
