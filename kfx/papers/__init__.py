"""What papers print: published numbers and claims beside measurements, studies, and the commands for both."""
