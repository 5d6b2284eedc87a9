"""From values to ids: vocabulary (which value has which id), fit, given, extended, file, lookup_file;
row_encoder (in workers); encoder and raw_rows are the door for raw rows outside of a preparation.
"""
