"""Code that knows neither clicks nor tables: settings, files (locks, checksums), native_library, memory,
console (commands' messages), packages (are all installed), number_text, signals, html/.
"""
