"""Code that knows neither clicks nor tables: settings, files (locks, checksums), hashing, native_library, memory,
console (commands' messages), packages (are all installed), number_text, frames (results as data
frames), signals, html/.
"""
