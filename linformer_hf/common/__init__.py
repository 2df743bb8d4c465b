"""What all folders share: records, files, figures, the command line."""
