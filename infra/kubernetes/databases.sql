-- Run once, when PostgreSQL makes its data folder.
CREATE DATABASE prefect;
CREATE DATABASE mlflow;
