"""What people look at: results.json and tables from what a run left behind."""
