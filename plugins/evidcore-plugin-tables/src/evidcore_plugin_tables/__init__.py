"""Tables of a user's own as data sets: a folder with cases.csv, any table, questions made from masks."""
