"""What is neither about clicks nor tables: settings, files (locks, checksums), native_library, memory,
console (commands' messages), packages (is all installed),
signals, html/.
"""
