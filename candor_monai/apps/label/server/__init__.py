"""The MONAI Label side: app, datastore, tasks. These modules need monailabel; nothing else of the package does."""
