from gruppo.api import compare as compare
from gruppo.api import configured as configured
from gruppo.api import evaluate as evaluate
from gruppo.api import load as load
from gruppo.api import resume as resume
from gruppo.api import resume_steps as resume_steps
from gruppo.api import steps as steps
from gruppo.api import train as train
from gruppo.api.runs import SavedRun as SavedRun
from gruppo.methods import method as method
from gruppo.stages import Method as Method
from gruppo.tasks import Task as Task
from gruppo.tasks import TaskSet as TaskSet
from gruppo.train.callbacks import Callback as Callback
from gruppo.train.callbacks import Step as Step

__version__: str
