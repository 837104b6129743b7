"""The dashboard page in a real browser: what it shows, compared with Redis, while the real service runs under load.

`python -m load.browser` (`make browser`) starts the service, a fleet, the page and Chromium. It compares every value on the page
with Redis, kills the service, sends the names of a hostile fleet, and asks axe-core for violations of accessibility.
"""
