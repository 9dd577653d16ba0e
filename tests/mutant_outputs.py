"""Faults of the rule which paths may be written, and of how files are made (see mutants.py)."""
from mutant_fault import fault

OUTPUTS = "outputs_test.py --only"

fault("a flag writes through a symbolic link", "engine/data/file.c", "int there = lstat(", "int there = stat(",
      f"{OUTPUTS} kinds")
fault("a device is a file to write to", "engine/data/file.c", "    if (there && !S_ISREG(st.st_mode))\n", "    if (there && S_ISDIR(st.st_mode))\n",
      f"{OUTPUTS} kinds")
fault("a file of two names is two files", "engine/api/outputs.c", "    if (a->there && b->there && one_inode(&a->file, &b->file))\n        return 1;\n",
      "", f"{OUTPUTS} kinds")
fault("a name that is not there yet is no file", "engine/api/outputs.c", "    return a->in_folder && b->in_folder &&", "    return a->there && b->there &&",
      f"{OUTPUTS} each_other")
fault("somebody's file is replaced", "engine/api/outputs.c", "!ours_now && !of_job && !c->overwrite", "0", f"{OUTPUTS} kinds")
fault("a file of a model's folder is replaced", "engine/api/outputs.c", "f->there && model && !ours_now &&", "0 && model && !ours_now &&",
      f"{OUTPUTS} model_files")
fault("OUT's companions are not looked at", "engine/api/outputs.c", "i < N_JOB_COMPANIONS && c->out", "i < 0 && c->out", f"{OUTPUTS} each_other")
fault("somebody's OUT.partial is dropped", "engine/job/job_files.c", "(s.st_size > 0 || i < 0)", "(i < 0)", f"{OUTPUTS} each_other")
fault("a refused job leaves its files", "engine/job/job.c", "        job->refused = job->fresh;\n", "        ;\n", f"{OUTPUTS} no_job")
fault("a refused job leaves its rows of stdin", "engine/cli/commands.c", "    if (c->made_input &&", "    if (0 &&", f"{OUTPUTS} no_job")
fault("a new file follows a link", "kernels/base/whole.h", "(WHOLE_OPEN | O_CREAT | O_EXCL)", "(O_CLOEXEC | O_CREAT)", "whole_test", f"{OUTPUTS} links")
fault("a file that appears is replaced", "kernels/base/whole.c", "RENAME_NOREPLACE) == 0", "0) == 0", "whole_test")
fault("a file that took another's place is replaced", "kernels/base/whole.c", "int same = now.regular && now.ino == was->ino && now.dev == was->dev,",
      "int same = now.regular,", "whole_test")
fault("OUT takes the place of a file", "engine/job/job_out.c", "            was.there = 0;\n", "            ;\n", f"{OUTPUTS} taken")
fault("a full disk is no error of a side file", "engine/api/rows.c", "    TRY(sides);\n", "", f"{OUTPUTS} full")
fault("a store of figures is followed to where a link leads", "kernels/base/whole.h", "(O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)",
      "(O_CLOEXEC | O_NONBLOCK)", f"{OUTPUTS} frontier")
