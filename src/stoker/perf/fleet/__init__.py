"""Many jobs at once: read a table of their features or make one up, and see where the time of the fleet goes."""

from stoker.perf.fleet.jobs import Fleet as Fleet
from stoker.perf.fleet.reading import read_fleet as read_fleet
from stoker.perf.fleet.reading import write_csv as write_csv
from stoker.perf.fleet.report import examine as examine
from stoker.perf.fleet.synthetic import synthetic_fleet as synthetic_fleet
