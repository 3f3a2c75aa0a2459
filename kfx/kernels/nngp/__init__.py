"""Dense networks of infinite width."""
