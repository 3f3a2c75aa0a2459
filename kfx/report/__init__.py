"""Published numbers beside measured ones: tables, verdicts and pages."""
