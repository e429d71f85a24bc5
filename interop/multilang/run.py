"""KCL's workers of other languages under `anabranch multilang`, against `anabranch local`.

Variables: ANABRANCH (the binary), PYTHON and KCLPY (amazon_kclpy's unpacked source), NODE and NODE_PATH (with aws-kcl),
KCL_DAEMON (the folder of Java's daemon, for `java`).
Arguments: python, node, options, unruly, java; without any, all but java.
Prints one line a check: `ok NAME`, or `not ok NAME: WHY`.
"""

import os
import sys

import stage


def main():
    which = sys.argv[1:] or ["python", "node", "options", "unruly"]
    if "python" in which or "node" in which:
        import through
    if "python" in which:
        through.through_everything("python", *stage.recorder())
        through.sample("python")
    if "node" in which:
        worker = os.path.join(stage.HERE, "recorder.js")
        through.through_everything("node", f"{os.environ['NODE']} {worker}", {})
    if "options" in which:
        import options

        options.run()
    if "unruly" in which:
        import unruliness

        unruliness.run()
    if "java" in which:
        import java

        java.run()
    sys.exit(1 if stage.failures else 0)


main()
