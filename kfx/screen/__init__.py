"""What people see on a terminal or in a notebook while a run computes, and when it ends."""
