"""Faults of a job on several devices (engine/cli/devices*.c), as mutant_list.py has the others."""
from mutant_fault import fault

DEVICES, REPORT, TEST = "engine/cli/devices.c", "engine/cli/devices_report.c", "devices_test.py --only "
fault("--devices: each process has all of --mem-ram", DEVICES, "d->ram = ram / d->n - CODE_BYTES;", "d->ram = ram - CODE_BYTES;", TEST + "shares")
fault("--devices: code is not counted", DEVICES, "d->ram = ram / d->n - CODE_BYTES;", "d->ram = ram / d->n;", TEST + "shares")
fault("--devices: CPUs are not divided", DEVICES, "        machine_share_cpus(nodes, n, worker_part);\n", "        (void)nodes;\n", TEST + "shares")
fault("--devices: the second part of the CPUs is the first", "offload/machine.c", "            before += shares && i < part;\n", "", TEST + "shares")
fault("--devices: the first worker plans for all rows", DEVICES, "    c->workers = n;\n", "", TEST + "planned")
fault("--devices: a worker writes --summary", DEVICES, "    c->summary = NULL;\n", "", TEST + "shares")
fault("--devices: a worker of flags from a file starts workers", DEVICES, "    c->devices = NULL;\n", "", TEST + "kinds")
fault("--devices: no worker is told to stop", DEVICES, "kill(d->workers[i].pid, SIGTERM);", "(void)0;", TEST + "stops")
fault("--devices: workers outlive their parent", DEVICES, "    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);", "    ", TEST + "stops")
fault("--devices: who failed is the end of the job", DEVICES, "        if (is_done(w->code))\n            return w->code;\n", "", TEST + "kills")
fault("--devices: a signal is no failure", DEVICES, "w->code = w->signal ? ERR_STOPPED :", "w->code = w->signal ? OK :", TEST + "kills")
fault("--devices: the dead are waited for", DEVICES, "    claims_bury(d->dir, w->pid);\n", "        ;\n", TEST + "kills")
fault("--devices: the others do not start when the first has failed", DEVICES, "(d->planned_ns || d->n_started > 1 || d->workers[0].ended)", "(d->planned_ns || d->n_started > 1)", TEST + "refusals")
fault("--devices: a refused job leaves its folder", DEVICES, "        drop_folder(d);\n", "        ;\n", TEST + "refusals")
fault("--devices: a folder of the user's is taken", DEVICES, "if (!S_ISDIR(st.st_mode) || !(has(d, CLAIMS_JOB) ||", "if (!S_ISDIR(st.st_mode) || !(1 || has(d, CLAIMS_JOB) ||", TEST + "refusals")
fault("--devices: a number may come twice", DEVICES, "            if (numbers[i] == numbers[*n])\n", "            if (0)\n", TEST + "refusals")
fault("--devices: one device leaves the folder of many", DEVICES, "            c->work_dir = dir;\n", "            ;\n", TEST + "stops")
fault("--devices: the summary forgets who has failed", REPORT, "    for (int i = 0; i < d->n_started; i++) {\n        first = first ?", "    for (int i = 0; i < d->n_started && !first; i++) {\n        first = first ?", TEST + "kills")
fault("a worker's tokens are those of its last rows", "engine/api/rows.c", "        *tokens += counts.output_tokens;", "        *tokens = counts.output_tokens;", TEST + "shares")
