"""Code from elsewhere: functions that a user names, C++ that is compiled here."""
