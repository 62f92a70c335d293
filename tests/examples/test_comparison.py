import json
import subprocess
import sys

from watched_run import SCRIPT, with_our_path


def test_compare_trains_both_ways_to_the_same_bits_and_leaves_table_and_picture(tmp_path):
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), '--compare', '--arch', 'googlenet', '--crop', '64', '--batchsize', '8',
         '--iterations', '2', '--policy', 'swap-all', '--out', str(tmp_path)],
        capture_output=True, text=True, env=with_our_path())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    in_core, ooc = json.loads((tmp_path / 'comparison.json').read_text())['rows']
    assert (in_core['outcome'], ooc['outcome']) == ('finished', 'finished')
    assert (ooc['losses_equal'], ooc['parameters_equal']) == (True, True)
    assert min(ooc['swapped_out_bytes'], ooc['swapped_in_bytes']) > 10**6
    assert in_core['losses'][0] in ran.stdout
    assert (tmp_path / 'memory.png').stat().st_size > 10_000
